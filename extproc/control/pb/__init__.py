"""Generated from `protos/tidegate/v1` by `make protos`."""
