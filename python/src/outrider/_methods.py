"""The methods of the public service, by name: the same for both kinds of channels."""

from outrider.v1 import inference_pb2

_SERVICE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name

GENERATE = f"/{_SERVICE}/Generate"
DESCRIBE = f"/{_SERVICE}/Describe"
