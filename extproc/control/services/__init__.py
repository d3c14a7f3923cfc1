"""The services of the control API, one file each: from protobuf to what is meant, and back."""
