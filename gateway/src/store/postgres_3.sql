CREATE TABLE usage (
    hour BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    class TEXT NOT NULL,
    model TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    prompt BIGINT NOT NULL,
    cached BIGINT NOT NULL,
    completion BIGINT NOT NULL,
    cost BIGINT NOT NULL,
    PRIMARY KEY (hour, tenant, class, model, endpoint)
);
CREATE TABLE usage_sums (
    kind TEXT NOT NULL,
    period BIGINT NOT NULL,
    name TEXT NOT NULL,
    tokens BIGINT NOT NULL,
    cost BIGINT NOT NULL,
    PRIMARY KEY (kind, period, name)
);
