"""The full names of the public service's methods, which both kinds of channels use."""

from outrider.v1 import inference_pb2

_SERVICE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name

GENERATE = f"/{_SERVICE}/Generate"
DESCRIBE = f"/{_SERVICE}/Describe"
