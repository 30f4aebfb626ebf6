-- number: the order in which records were made.
CREATE TABLE files (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX files_of_tenant ON files (tenant, number);
-- document: everything else that is known of the batch, as JSON.
CREATE TABLE batches (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    is_active INTEGER NOT NULL,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    document TEXT NOT NULL
);
CREATE INDEX batches_of_tenant ON batches (tenant, number);
CREATE INDEX active_batches ON batches (number) WHERE is_active = 1;
-- Lines of batches that have not ended: what becomes of them in the output file, or the error file.
CREATE TABLE results (
    batch TEXT NOT NULL,
    line INTEGER NOT NULL,
    is_error INTEGER NOT NULL,
    text BLOB NOT NULL
);
CREATE UNIQUE INDEX results_of_batch ON results (batch, is_error, line);
CREATE UNIQUE INDEX lines_of_batch ON results (batch, line);
-- One row, which is written again and again: whether that works.
CREATE TABLE checks (id INTEGER PRIMARY KEY CHECK (id = 1), at INTEGER NOT NULL);
