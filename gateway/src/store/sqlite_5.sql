-- What was used. hour: hours since 1970. endpoint: the external one, or empty. prompt, cached,
-- completion: tokens; prompt includes cached ones. cost: billionths of the currency's unit.
CREATE TABLE usage (
    hour INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    class TEXT NOT NULL,
    model TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    prompt INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    completion INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    PRIMARY KEY (hour, tenant, class, model, endpoint)
);
-- Sums of it, for budgets. kind: 'month' of a tenant, or 'day' of an endpoint. period: months since
-- year 0, or days since 1970.
CREATE TABLE usage_sums (
    kind TEXT NOT NULL,
    period INTEGER NOT NULL,
    name TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    PRIMARY KEY (kind, period, name)
);
