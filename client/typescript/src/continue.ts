// continue ADDRESS PROMPT [TEMPERATURE]: prints a continuation as it comes, then what speculation did for it.
import { credentials, status, type ServiceError } from "@grpc/grpc-js";

import { ErrorInfo } from "./gen/google/rpc/error_details.js";
import { Status } from "./gen/google/rpc/status.js";
import { GenerateRequest, InferenceClient, type Finish, type GenerateResponse } from "./gen/outrider/v1/inference.js";

// The ErrorInfo that every error of Outrider carries. gRPC's own, such as that nobody answers, have none.
function infoOf(error: ServiceError): ErrorInfo | undefined {
  const [details] = error.metadata.get("grpc-status-details-bin");
  if (!Buffer.isBuffer(details)) return undefined;
  const info = Status.decode(details).details.find(({ typeUrl }) => typeUrl.endsWith("/google.rpc.ErrorInfo"));
  return info && ErrorInfo.decode(info.value);
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && "metadata" in error && "code" in error;
}

async function main(address: string, prompt: string, temperature: number): Promise<number> {
  const client = new InferenceClient(address, credentials.createInsecure());
  const call = client.generate(
    GenerateRequest.fromPartial({ text: prompt, sampling: { temperature }, stop: { maxTokens: 40 } }),
  );
  // Ends the generation on the server too. Another Ctrl-C ends the program at once.
  process.once("SIGINT", () => call.cancel());
  try {
    let tokens = 0;
    let finish: Finish | undefined;
    for await (const chunk of call as AsyncIterable<GenerateResponse>) {
      process.stdout.write(chunk.text);
      tokens += chunk.tokens.length;
      finish = chunk.finish ?? finish;
    }
    const { accepted = 0n, drafted = 0n } = finish?.speculation ?? {};
    console.error(`\n${tokens} tokens, ${accepted} of ${drafted} drafted ones accepted`);
    return 0;
  } catch (error) {
    if (!isServiceError(error)) throw error;
    if (error.code === status.CANCELLED) return 130;
    const info = infoOf(error);
    const reason = info ? ` (reason ${info.reason}, field ${info.metadata["field"] ?? "none"})` : "";
    console.error(`${status[error.code]}: ${error.details}${reason}`);
    return 1;
  } finally {
    client.close();
  }
}

const [address, prompt, temperature] = process.argv.slice(2);
if (address === undefined || prompt === undefined) {
  console.error("usage: continue ADDRESS PROMPT [TEMPERATURE]");
  process.exitCode = 2;
} else {
  process.exitCode = await main(address, prompt, Number(temperature ?? 0));
}
