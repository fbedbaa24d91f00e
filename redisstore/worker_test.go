package redisstore_test

// workerEnv tells this test binary that it was started as a worker.
const workerEnv = "IDEMMAIL_REDISSTORE_WORKER"

func work() int { return 0 }
