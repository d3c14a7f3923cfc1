"""Alembic's entry: runs the steps on the connection that `extproc.quota.database` hands over."""

from alembic import context

from extproc.quota.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
