"""What the HTTP bodies mean: reading requests, writing replies. Pure."""
