// Package endtoend holds tests of package trainer, and no code for other packages. They train, resume, evaluate and serve small teams
// through the exported functions, and compare the records, checkpoints, ledgers and errors.
//
// Most tests begin with these helpers:
//   - load reads the quickstart's configuration with overrides that make a run take seconds (team_test.go);
//   - mustTrain trains a team to the end and returns a recorder with its records and notes;
//   - whole and rankedRun return uninterrupted runs, which several tests compare with theirs;
//   - interrupt, stopIn and stopAfter end a run at a chosen moment;
//   - digests, sameWeights and sameNumbers compare runs bit for bit;
//   - startRedis and workerProcess run the agents in several processes: TestMain makes the test binary a worker.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package endtoend
