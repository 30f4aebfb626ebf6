-- See the files for SQLite for what columns mean.
CREATE TABLE files (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX files_of_tenant ON files (tenant, number);
CREATE TABLE batches (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    is_active INTEGER NOT NULL,
    completed BIGINT NOT NULL DEFAULT 0,
    failed BIGINT NOT NULL DEFAULT 0,
    input_file TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    owner TEXT,
    document TEXT NOT NULL
);
CREATE INDEX batches_of_tenant ON batches (tenant, number);
CREATE INDEX active_batches ON batches (number) WHERE is_active = 1;
CREATE TABLE results (
    batch TEXT NOT NULL,
    line BIGINT NOT NULL,
    is_error INTEGER NOT NULL,
    text BYTEA NOT NULL,
    PRIMARY KEY (batch, line)
);
CREATE UNIQUE INDEX results_of_batch ON results (batch, is_error, line);
CREATE TABLE checks (id INTEGER PRIMARY KEY CHECK (id = 1), at BIGINT NOT NULL);
CREATE TABLE tasks (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    is_active INTEGER NOT NULL,
    has_begun INTEGER NOT NULL DEFAULT 0,
    bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    owner TEXT,
    document TEXT NOT NULL,
    request BYTEA,
    progress BYTEA,
    result BYTEA NOT NULL,
    events BYTEA
);
CREATE INDEX active_tasks ON tasks (number) WHERE is_active = 1;
CREATE INDEX active_tasks_of_tenant ON tasks (tenant) WHERE is_active = 1;
CREATE INDEX tasks_by_age ON tasks (created_at);
CREATE TABLE task_events (
    task TEXT NOT NULL,
    number BIGINT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (task, number)
);
CREATE TABLE gateways (id TEXT PRIMARY KEY, seen_at BIGINT NOT NULL);
CREATE TABLE changes (id INTEGER PRIMARY KEY CHECK (id = 1), number BIGINT NOT NULL);
INSERT INTO changes (id, number) VALUES (1, 0);
CREATE TABLE deliveries (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL,
    webhook TEXT NOT NULL,
    body TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    next_at BIGINT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX due_deliveries ON deliveries (webhook, next_at);
CREATE TABLE turns (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    previous TEXT,
    is_hidden INTEGER NOT NULL,
    bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    document BYTEA NOT NULL
);
CREATE INDEX later_turns ON turns (previous);
CREATE INDEX hidden_turns ON turns (tenant) WHERE is_hidden = 1;
CREATE INDEX turns_by_age ON turns (created_at);
CREATE TABLE deletions (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    response TEXT NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX deletions_of_response ON deletions (response);
