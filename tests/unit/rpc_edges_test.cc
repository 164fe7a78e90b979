// Input from the network: who can reach a listener, and bytes that are no message.
#include <gmock/gmock.h>

#include "common/rpc/address.h"
#include "common/rpc/error.h"
#include "common/rpc/parse_message.h"
#include "common/spec/status.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

TEST(IsLocalAddress, IsOneThatOnlyThisHostCanConnectTo) {
  for (const char* local : {"127.0.0.1:0", "127.8.9.1:7070", "localhost:7070", "[::1]:7070", "unix:a.sock",
                            "unix-abstract:outrider"}) {
    EXPECT_TRUE(IsLocalAddress(local)) << local;
  }
  for (const char* open :
       {"0.0.0.0:7070", "[::]:7070", "10.0.0.1:7070", "127.0.0.1.example.org:7070", ":7070",
        "localhost.example.org:7070", "*:7070", "[::ffff:10.0.0.1]:1", "127.0.0.1x:1", ""}) {
    EXPECT_FALSE(IsLocalAddress(open)) << open;
  }
}

TEST(CheckExposure, WantsEncryptionOrAWordWhereOthersCanConnect) {
  EXPECT_TRUE(CheckExposure("--listen", "127.0.0.1:0", false, false).ok());
  EXPECT_TRUE(CheckExposure("--listen", "0.0.0.0:0", true, false).ok());
  EXPECT_TRUE(CheckExposure("--listen", "0.0.0.0:0", false, true).ok());
  const absl::Status refusal = CheckExposure("--listen", "0.0.0.0:0", false, false);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refusal.message(), HasSubstr("--listen: 0.0.0.0:0 can be reached from other hosts"));
  EXPECT_THAT(refusal.message(), HasSubstr("--insecure"));
}

grpc::ByteBuffer Bytes(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string FieldOf(const absl::Status& status) { return MetadataOf(status, "field"); }

absl::Status Parse(const std::string& bytes) {
  v1::GenerateRequest request;
  return ParseMessage(Bytes(bytes), &request);
}

TEST(ParseMessage, ReadsWhatWasWritten) {
  v1::GenerateRequest request, read;
  request.set_text("Once upon a time");
  request.mutable_stop()->add_strings(std::string(100'000, 'x'));
  ASSERT_TRUE(ParseMessage(SerializeMessage(request), &read).ok());
  EXPECT_EQ(read.SerializeAsString(), request.SerializeAsString());
}

TEST(ParseMessage, LeavesTheBytesAsTheyWere) {
  v1::GenerateRequest request, read;
  request.set_text("Once");
  const grpc::ByteBuffer bytes = SerializeMessage(request);
  const size_t size = bytes.Length();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(ParseMessage(bytes, &read).ok());
  EXPECT_EQ(bytes.Length(), size);
}

// The message with the first "ok" in its bytes made invalid.
std::string Spoilt(const v1::GenerateRequest& request) {
  std::string bytes = request.SerializeAsString();
  bytes[bytes.find("ok")] = '\xff';
  return bytes;
}

TEST(ParseMessage, IsCancelledWhereNoMessageCame) {
  v1::GenerateRequest read;
  EXPECT_EQ(ParseMessage(grpc::ByteBuffer(), &read).code(), absl::StatusCode::kCancelled);
}

TEST(ParseMessage, NamesTheTextThatIsNotUtf8) {
  v1::GenerateRequest request;
  request.set_text("ok");
  EXPECT_EQ(FieldOf(Parse(Spoilt(request))), "text");
  request.set_text("fine");
  request.mutable_stop()->add_strings("fine");
  request.mutable_stop()->add_strings("ok");
  EXPECT_EQ(FieldOf(Parse(Spoilt(request))), "stop.strings");
  request.mutable_chat()->add_messages()->set_content("fine");
  request.mutable_chat()->add_messages()->set_role("ok");
  request.mutable_stop()->clear_strings();
  EXPECT_EQ(FieldOf(Parse(Spoilt(request))), "chat.messages.role");
}

TEST(ParseMessage, RefusesWhatIsNoMessage) {
  for (const char* bytes : {"\x0a\x7f", "\xff\xff\xff", "\x0a\x03\x61\x62"}) {
    const absl::Status status = Parse(bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), "MESSAGE_INVALID");
    EXPECT_THAT(status.message(), HasSubstr("outrider.v1.GenerateRequest"));
  }
}

TEST(ParseMessage, TakesNoMoreTextsAndMessagesThanItMay) {
  v1::GenerateRequest request, read;
  request.set_text("ok");
  for (int i = 0; i < 40; ++i) request.mutable_chat()->add_messages()->set_role("user");
  for (int i = 0; i < 200; ++i) request.mutable_stop()->add_token_ids(7);
  const auto parse = [&](size_t most) { return ParseMessage(SerializeMessage(request), &read, most); };
  EXPECT_TRUE(parse(83).ok()) << "the conversation, its messages and their roles, and the stop options";
  EXPECT_EQ(ReasonOf(parse(82)), "MESSAGE_INVALID");
  EXPECT_THAT(parse(40).message(), HasSubstr("fewer than 40 texts"));
  EXPECT_EQ(FieldOf(ParseMessage(Bytes("\x0a\x01\xff"), &read, 2)), "text") << "what is wrong comes first";
}

TEST(ParseMessage, CountsFieldsThatItDoesNotKnow) {
  v1::GenerateRequest read;
  const auto parse = [&](const std::string& field, int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) bytes += field;
    return ReasonOf(ParseMessage(Bytes(bytes), &read, 50));
  };
  // Field 15000 as a number and as a text, and field 1, which is a text, as a number.
  for (const char* field : {"\xc0\xa9\x07\x01", "\xc2\xa9\x07\x01x", "\x08\x01"}) {
    EXPECT_EQ(parse(field, 49), "OK");
    EXPECT_EQ(parse(field, 50), "MESSAGE_INVALID");
  }
  EXPECT_EQ(parse("\xc3\xa9\x07\xc4\xa9\x07", 9), "MESSAGE_INVALID") << "longer than most, and a group";
}

TEST(ToGrpc, CutsWhatAClientSentBeforeItIsTooLongForATrailer) {
  const std::string sent(1 << 20, 'x');
  const grpc::Status cut = ToGrpc(FieldError("model", "one of: tiny", sent));
  EXPECT_LT(cut.error_message().size() + cut.error_details().size(), 4096u);
  EXPECT_THAT(cut.error_message(), HasSubstr("xxx... (1048"));
  const absl::Status read = FromGrpc(cut);
  EXPECT_EQ(FieldOf(read), "model");
  EXPECT_EQ(ReasonOf(read), "FIELD_INVALID");
}

TEST(Excerpt, EndsWithAWholeCharacter) {
  EXPECT_EQ(Excerpt("abc", 3), "abc");
  EXPECT_EQ(Excerpt("abcd", 3), "abc... (4 bytes)");
  EXPECT_EQ(Excerpt("ab\xc3\xa4", 3), "ab... (4 bytes)");
  EXPECT_EQ(Excerpt("\x80\x80\x80", 2), "... (3 bytes)");
}

TEST(ParseMessage, TakesFieldsThatItDoesNotKnow) {
  EXPECT_TRUE(Parse("\xfa\x7f\x02\xff\xff").ok()) << "field 2047, of a later version";
}

}  // namespace
}  // namespace outrider
