CREATE TABLE shared_settings (
    name TEXT PRIMARY KEY,
    revision BIGINT NOT NULL,
    value TEXT NOT NULL
);
