-- What was read from documents, where another database would read it differently. owner: the gateway
-- that runs it.
ALTER TABLE batches ADD COLUMN input_file TEXT NOT NULL DEFAULT '';
ALTER TABLE batches ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE batches ADD COLUMN owner TEXT;
UPDATE batches SET input_file = coalesce(document ->> 'input_file_id', ''),
    created_at = coalesce(document ->> '$.times.created_at', 0);
ALTER TABLE tasks ADD COLUMN owner TEXT;
ALTER TABLE tasks ADD COLUMN has_begun INTEGER NOT NULL DEFAULT 0;
-- Events of tasks that have not ended, for readers at other gateways. number: that of the first event.
CREATE TABLE task_events (
    task TEXT NOT NULL,
    number INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (task, number)
);
-- The gateways that use the store, and when each was heard of.
CREATE TABLE gateways (id TEXT PRIMARY KEY, seen_at INTEGER NOT NULL);
-- One row: how often work was created or canceled.
CREATE TABLE changes (id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL);
INSERT INTO changes (id, number) VALUES (1, 0);
-- Messages to receivers of webhooks. id: the event's. next_at: when to send it next.
CREATE TABLE deliveries (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    webhook TEXT NOT NULL,
    body TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    next_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX due_deliveries ON deliveries (webhook, next_at);
-- Turns of conversations. id: that of the turn's response. previous: that of the turn before it.
-- is_hidden: 1 if only later turns may see it. document: the turn and its owner, as JSON.
CREATE TABLE turns (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    previous TEXT,
    is_hidden INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    document BLOB NOT NULL
);
CREATE INDEX later_turns ON turns (previous);
CREATE INDEX hidden_turns ON turns (tenant) WHERE is_hidden = 1;
CREATE INDEX turns_by_age ON turns (created_at);
-- Responses that were deleted, for gateways that have them in memory.
CREATE TABLE deletions (
    number INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    response TEXT NOT NULL,
    at INTEGER NOT NULL
);
CREATE INDEX deletions_of_response ON deletions (response);
