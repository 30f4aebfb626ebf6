-- The last usage that a gateway has added: it tries again if it does not learn whether that was stored.
ALTER TABLE gateways ADD COLUMN added INTEGER NOT NULL DEFAULT 0;
