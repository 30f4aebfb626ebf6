-- Responses and jobs in the background. document: what else is known of it, as JSON. request: its
-- body, until it has ended. progress: what another node needs to continue it. result: of a response,
-- it with the turns before it, as JSON; of a job, its status and body. events: what was streamed,
-- once it has ended.
CREATE TABLE tasks (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    is_active INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    document TEXT NOT NULL,
    request BLOB,
    progress BLOB,
    result BLOB NOT NULL,
    events BLOB
);
CREATE INDEX active_tasks ON tasks (number) WHERE is_active = 1;
CREATE INDEX active_tasks_of_tenant ON tasks (tenant) WHERE is_active = 1;
CREATE INDEX tasks_by_age ON tasks (created_at);
