-- Tokens of these allotments that were used and are stored.
ALTER TABLE allotments ADD COLUMN counted INTEGER NOT NULL DEFAULT 0;
-- What operators have set for all gateways. Each change raises the revision.
CREATE TABLE shared_settings (
    name TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    value TEXT NOT NULL
);
