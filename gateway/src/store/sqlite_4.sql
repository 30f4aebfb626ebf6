-- Lines of batches that run. progress: what another node needs to continue one.
CREATE TABLE unfinished_lines (
    batch TEXT NOT NULL,
    line INTEGER NOT NULL,
    progress BLOB NOT NULL,
    PRIMARY KEY (batch, line)
);
