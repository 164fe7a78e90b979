#!/usr/bin/env python3
"""Makes a draft model from the layers that write_draft.py wrote and everything but the layers of their target's file."""

import argparse
from pathlib import Path

from gguf import GGUFReader, GGUFWriter


def write(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", type=Path, help="GGUF file that write_draft.py wrote")
    parser.add_argument("target", type=Path, help="GGUF file of the target")
    parser.add_argument("file", type=Path, help="GGUF file to write")
    args = parser.parse_args()
    layers, target = GGUFReader(args.layers), GGUFReader(args.target)
    fields = dict(target.fields) | {name: field for name, field in layers.fields.items() if name.endswith(".block_count")}
    writer = GGUFWriter(args.file, target.fields["general.architecture"].contents())
    for name, field in fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    replaced = {tensor.name for tensor in layers.tensors}
    kept = [tensor for tensor in target.tensors if not tensor.name.startswith("blk.") and tensor.name not in replaced]
    for tensor in [*kept, *layers.tensors]:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    write(writer)


if __name__ == "__main__":
    main()
