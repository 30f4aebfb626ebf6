CREATE TABLE budget_parts (
    gateway TEXT NOT NULL,
    kind TEXT NOT NULL,
    period BIGINT NOT NULL,
    owner TEXT NOT NULL,
    amount BIGINT NOT NULL,
    counted BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, period, owner, gateway)
);
INSERT INTO budget_parts SELECT gateway, 'tokens', period, tenant, tokens, counted FROM allotments;
DROP TABLE allotments;
ALTER TABLE budget_parts RENAME TO allotments;
ALTER TABLE usage RENAME COLUMN hour TO minute;
UPDATE usage SET minute = minute * 60;
