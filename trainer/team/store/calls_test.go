package store

import "context"

// Submit and Await are the two halves of Call. Tests use them to act in between.

func (m *Member) Submit(ctx context.Context, v Invocation) error {
	_, err := m.submit(ctx, v)
	return err
}

func (s *Store) Await(ctx context.Context, v Invocation) (Result, error) {
	wake, unsubscribe := s.topics.subscribe(answerTopic(v))
	defer unsubscribe()
	return s.await(ctx, v, wake, false)
}
