"""The store of one process, on its own disk: tables in LMDB, one writer, one fsync a group."""
