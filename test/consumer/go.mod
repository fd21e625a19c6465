// Tests that other modules can import ours. It has go.mod of its own because it needs golang.org/x/mod, which nothing else here does.
module github.com/switchyard-net/switchyard/test/consumer

go 1.26.0

require golang.org/x/mod v0.41.0
