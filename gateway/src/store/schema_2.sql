-- Responses in the background. document: what else is known of it, as JSON. request: its body,
-- until it has ended. progress: what another node needs to continue it. conversation: the response
-- with the turns before it, as JSON. events: what was streamed, once it has ended.
CREATE TABLE responses (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    is_active INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    document TEXT NOT NULL,
    request BLOB,
    progress BLOB,
    conversation BLOB NOT NULL,
    events BLOB
);
CREATE INDEX active_responses ON responses (number) WHERE is_active = 1;
CREATE INDEX active_responses_of_tenant ON responses (tenant) WHERE is_active = 1;
CREATE INDEX responses_by_age ON responses (created_at);
