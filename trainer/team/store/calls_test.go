package store

import "context"

// Submit and Await are the two halves of Call. Tests use them to act in between.

func (in *Invocations) Submit(ctx context.Context, v Invocation) error {
	_, err := in.submit(ctx, v)
	return err
}

func (in *Invocations) Await(ctx context.Context, v Invocation) (Result, error) {
	wake, unsubscribe := in.at.topics.subscribe(answerTopic(v))
	defer unsubscribe()
	return in.await(ctx, v, wake, false)
}
