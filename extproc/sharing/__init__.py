"""What several Tidegates know of each other through Redis or Valkey; nothing that is owed is only there."""
