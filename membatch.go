package idemmail

import "context"

// ReserveMany implements [BatchStore]. It saves nothing over calls of Reserve;
// nor do the other three over theirs.
func (s *MemStore) ReserveMany(ctx context.Context, reqs []ReserveRequest) []ReserveResult {
	results := make([]ReserveResult, len(reqs))
	for i, r := range reqs {
		results[i].Token, results[i].Held, results[i].Err = s.Reserve(ctx, r.Key, r.Fingerprint, r.Lease)
	}
	return results
}

// CompleteMany implements [BatchStore].
func (s *MemStore) CompleteMany(ctx context.Context, reqs []CompleteRequest) []error {
	errs := make([]error, len(reqs))
	for i, r := range reqs {
		errs[i] = s.Complete(ctx, r.Key, r.Token, r.Record, r.TTL)
	}
	return errs
}

// ReleaseMany implements [BatchStore].
func (s *MemStore) ReleaseMany(ctx context.Context, reqs []ReleaseRequest) []error {
	errs := make([]error, len(reqs))
	for i, r := range reqs {
		errs[i] = s.Release(ctx, r.Key, r.Token)
	}
	return errs
}

// RenewMany implements [BatchStore].
func (s *MemStore) RenewMany(ctx context.Context, reqs []RenewRequest) []error {
	errs := make([]error, len(reqs))
	for i, r := range reqs {
		errs[i] = s.Renew(ctx, r.Key, r.Token, r.Lease)
	}
	return errs
}
