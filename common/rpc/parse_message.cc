#include "common/rpc/parse_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"
#include "common/spec/status.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// The path of the first text that is not UTF-8, such as "chat.messages.content"; empty if there is none.
std::string FindInvalidText(const UnknownFieldSet& fields, const google::protobuf::Descriptor& type) {
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const FieldDescriptor* const known = type.FindFieldByNumber(field.number());
    if (known == nullptr || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    const std::string name(known->name());
    if (known->type() == FieldDescriptor::TYPE_STRING && !IsValidUtf8(field.length_delimited())) return name;
    UnknownFieldSet nested;
    if (known->type() != FieldDescriptor::TYPE_MESSAGE || !nested.ParseFromString(field.length_delimited())) {
      continue;
    }
    if (std::string path = FindInvalidText(nested, *known->message_type()); !path.empty()) {
      return absl::StrCat(name, ".", path);
    }
  }
  return "";
}

std::string Flatten(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string flat;
  if (!bytes.Dump(&slices).ok()) return flat;
  for (const grpc::Slice& slice : slices)
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return flat;
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  // Which takes a pointer and only reads.
  grpc::ProtoBufferReader reader(const_cast<grpc::ByteBuffer*>(&bytes));
  if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  UnknownFieldSet fields;
  if (fields.ParseFromString(Flatten(bytes))) {
    const std::string path = FindInvalidText(fields, *message->GetDescriptor());
    if (!path.empty()) return FieldError(path, "valid UTF-8", "invalid UTF-8");
  }
  return MakeError(absl::StatusCode::kInvalidArgument, "MESSAGE_INVALID",
                   absl::StrCat("not a ", std::string(message->GetDescriptor()->full_name())));
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool owns = false;
  grpc::SerializationTraits<google::protobuf::Message>::Serialize(message, &bytes, &owns);
  return bytes;
}

}  // namespace outrider
