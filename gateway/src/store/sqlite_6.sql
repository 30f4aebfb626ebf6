-- Tokens of monthly budgets that a gateway may grant to requests, until it has stored that they were
-- used. period: as in usage_sums.
CREATE TABLE allotments (
    gateway TEXT NOT NULL,
    period INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (gateway, period, tenant)
);
