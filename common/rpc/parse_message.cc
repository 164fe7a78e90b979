#include "common/rpc/parse_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/spec/status.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;
using google::protobuf::internal::WireFormatLite;

constexpr int kMaxDepth = 100;  // protobuf's own limit

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

// Whether a field is encoded as plain numbers: a single one, or a packed list, which has a length.
bool IsNumbers(const FieldDescriptor& field, bool has_length) {
  return field.cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
         field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE && (!has_length || field.is_packable());
}

// Subtracts one from *left for each text and message, and for each field that `type` lacks, since unknown
// fields are kept too. False if *left reaches 0 or if the bytes are not a message of `type`.
bool CountObjects(google::protobuf::io::CodedInputStream& in, const google::protobuf::Descriptor& type,
                  int depth, size_t* left) {
  while (const uint32_t tag = in.ReadTag()) {
    const FieldDescriptor* const field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const WireFormatLite::WireType wire_type = WireFormatLite::GetTagWireType(tag);
    const bool has_length = wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    // No message of this protocol has a group, and a group may hold any number of fields.
    if (wire_type == WireFormatLite::WIRETYPE_START_GROUP) *left = 0;
    if (field != nullptr && IsNumbers(*field, has_length)) {
      if (!WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    if (*left == 0 || --*left == 0) return false;
    if (!has_length || field == nullptr || field->type() != FieldDescriptor::TYPE_MESSAGE) {
      if (!WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    int size = 0;
    if (depth == 0 || !in.ReadVarintSizeAsInt(&size)) return false;
    const auto limit = in.PushLimit(size);
    if (!CountObjects(in, *field->message_type(), depth - 1, left) || in.BytesUntilLimit() != 0) return false;
    in.PopLimit(limit);
  }
  return true;
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message,
                          size_t max_objects) {
  if (!bytes.Valid()) return absl::CancelledError("the client has gone");
  // ProtoBufferReader takes a mutable pointer but only reads.
  grpc::ByteBuffer* const source = const_cast<grpc::ByteBuffer*>(&bytes);
  if (max_objects < bytes.Length()) {
    grpc::ProtoBufferReader counted(source);
    google::protobuf::io::CodedInputStream in(&counted);
    size_t left = max_objects;
    CountObjects(in, *message->GetDescriptor(), kMaxDepth, &left);
    if (left == 0) {
      return InvalidFor("MESSAGE_INVALID", "not a ", std::string(message->GetDescriptor()->full_name()),
                        " of fewer than ", max_objects, " texts, messages and unknown fields");
    }
  }
  grpc::ProtoBufferReader reader(source);
  if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  UnknownFieldSet fields;
  grpc::ProtoBufferReader again(source);
  if (again.status().ok() && fields.ParseFromZeroCopyStream(&again)) {
    const std::string path = FindInvalidText(fields, *message->GetDescriptor());
    if (!path.empty()) return FieldError(path, "valid UTF-8", "invalid UTF-8");
  }
  return InvalidFor("MESSAGE_INVALID", "not a ", std::string(message->GetDescriptor()->full_name()));
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool owns = false;
  grpc::SerializationTraits<google::protobuf::Message>::Serialize(message, &bytes, &owns);
  return bytes;
}

}  // namespace outrider
