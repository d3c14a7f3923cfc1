"""One Tidegate of several processes: a parent that keeps them, and what each is told."""
