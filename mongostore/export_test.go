package mongostore

import (
	"context"
	"time"
)

// Advance lets the server's clock seem to s to be further by d.
func (s *Store) Advance(d time.Duration) {
	ask := s.clock.ask
	s.clock.ask = func(ctx context.Context) (time.Time, error) {
		server, err := ask(ctx)
		return server.Add(d), err
	}
	s.clock.reading.Store(nil)
}
