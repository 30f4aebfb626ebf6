CREATE TABLE allotments (
    gateway TEXT NOT NULL,
    period BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    tokens BIGINT NOT NULL,
    PRIMARY KEY (gateway, period, tenant)
);
