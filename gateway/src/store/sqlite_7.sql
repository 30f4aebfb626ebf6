-- What operators have set for all gateways. Each change raises the revision.
CREATE TABLE shared_settings (
    name TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    value TEXT NOT NULL
);
