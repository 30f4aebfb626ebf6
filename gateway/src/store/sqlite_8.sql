-- Parts of budgets that a gateway may grant to requests, until it has stored that they were used.
-- kind: tokens, spend, endpoint_spend, user_tokens, user_spend. period: a day for endpoint_spend,
-- else a month, as in usage_sums. amount: tokens, or billionths of the currency's unit.
-- counted: how much of it was used and is stored. usage_sums have a further kind: 'user' of a month.
CREATE TABLE budget_parts (
    gateway TEXT NOT NULL,
    kind TEXT NOT NULL,
    period INTEGER NOT NULL,
    owner TEXT NOT NULL,
    amount INTEGER NOT NULL,
    counted INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, period, owner, gateway)
);
INSERT INTO budget_parts SELECT gateway, 'tokens', period, tenant, tokens, counted FROM allotments;
DROP TABLE allotments;
ALTER TABLE budget_parts RENAME TO allotments;
-- Usage by minute, later by hour: minutes since 1970. No hour is as large as the minute of another.
ALTER TABLE usage RENAME COLUMN hour TO minute;
UPDATE usage SET minute = minute * 60;
