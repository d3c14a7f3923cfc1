"""Envoy's side: the ext_proc state machine, its protobuf wire format, the gRPC servicers."""
