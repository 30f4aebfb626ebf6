CREATE TABLE unfinished_lines (
    batch TEXT NOT NULL,
    line BIGINT NOT NULL,
    progress BYTEA NOT NULL,
    PRIMARY KEY (batch, line)
);
