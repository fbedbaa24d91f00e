package sqlstore

import (
	"context"
	"fmt"
)

// sweepSize is how many rows DeleteExpired removes by one statement: few enough
// that nobody waits long for it.
const sweepSize = 1000

// DeleteExpired removes records whose time has passed, the oldest first, and at
// most limit of them, which must be positive; it answers how many it removed,
// beside an error too. It removes them by statements of 1,000 rows, leaves out
// those that are in use at that moment, and never removes a record within its
// time, nor a row that is not a record.
//
// Nothing depends on it but the size of the table: call it now and then, from
// any number of processes.
func (s *Store) DeleteExpired(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("sqlstore: delete expired records: limit is %d", limit)
	}
	deleted := 0
	for deleted < limit {
		size := min(limit-deleted, sweepSize)
		keys, err := awaitResult(ctx, func() (map[string]bool, error) {
			return s.change(ctx, s.own, s.sql.sweep, [][]any{{int64(size)}})
		})
		if err != nil {
			return deleted, fmt.Errorf("sqlstore: delete expired records: %w", err)
		}
		deleted += len(keys)
		if len(keys) < size {
			break
		}
	}
	return deleted, nil
}
