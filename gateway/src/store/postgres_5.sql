ALTER TABLE allotments ADD COLUMN counted BIGINT NOT NULL DEFAULT 0;
CREATE TABLE shared_settings (
    name TEXT PRIMARY KEY,
    revision BIGINT NOT NULL,
    value TEXT NOT NULL
);
