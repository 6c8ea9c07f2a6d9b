package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/secret"
)

// Leases hands jobs to programs on other machines, over HTTP. It is an http.Handler for /rollouts/. If a program
// neither renews nor ends its lease in time, another program gets the job as the next attempt.
type Leases struct {
	LeaseOptions

	mu      sync.Mutex
	secret  Secret
	waiting []*leasedJob
	byID    map[string]*leasedJob
	wake    chan struct{} // closed when a job is queued
	mux     *http.ServeMux
}

// LeaseOptions configure Leases.
type LeaseOptions struct {
	Token   string        // requests must carry it as a bearer token
	Lease   time.Duration // time after which a lease without renewal expires
	Timeout time.Duration // total time of a program
	BaseURL string        // address of the team's main agent, ending with /v1; "": the host of the request
}

// leasedJob is a job that is waiting or being played.
type leasedJob struct {
	job     Job
	id      string
	attempt int
	expires *time.Timer     // nil: the job waits for a program
	ends    time.Time       // end of the attempt, regardless of renewals
	done    chan JobOutcome // has room for one element
	ended   bool
}

// Lease is the reply that gives a program a rollout for a time.
type Lease struct {
	ID       string          `json:"id"`
	Query    json.RawMessage `json:"query"`
	Rollout  int             `json:"k"`
	Attempt  int             `json:"attempt"`
	Deadline int64           `json:"deadline"` // Unix seconds
	Renew    float64         `json:"renew"`    // seconds within which the lease must be renewed
	BaseURL  string          `json:"base_url"`
	Key      string          `json:"key"`
}

// maxAttempts is the number of times that a rollout may be leased.
const maxAttempts = 5

// NewLeases returns Leases without jobs.
func NewLeases(opt LeaseOptions) *Leases {
	l := &Leases{LeaseOptions: opt, byID: map[string]*leasedJob{}, wake: make(chan struct{}), mux: http.NewServeMux()}
	for path, h := range map[string]func(*http.Request, []byte) (any, error){
		"POST /rollouts/lease": l.lease, "POST /rollouts/{id}/renew": l.renew, "PUT /rollouts/{id}/result": l.result} {
		l.mux.Handle(path, l.guard(h))
	}
	return l
}

// ServeHTTP implements http.Handler.
func (l *Leases) ServeHTTP(w http.ResponseWriter, r *http.Request) { l.mux.ServeHTTP(w, r) }

// Sign sets the secret that signs the programs' keys. It is called when the run's round begins.
func (l *Leases) Sign(s Secret) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.secret = s
}

// guard returns a handler that answers with h's JSON, or with its error.
func (l *Leases) guard(h func(*http.Request, []byte) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		_, err := l.secret.ticket(bearer(r), time.Now())
		l.mu.Unlock()
		if err != nil && !secret.Equal(bearer(r), l.Token) {
			refuse(401, "invalid_api_key", "a request for a lease needs the token of gateway.token_env as its bearer token, and requests about a "+
				"lease need its key").write(w)
			return
		}
		// Read the body before the handler waits: only then does the server notice that a client has gone.
		body, err := readBody(w, r, maxResult+1)
		var answer any
		if err == nil {
			answer, err = h(r, body)
		}
		switch {
		case err != nil:
			toAPIError(err).write(w)
		case answer == nil:
			w.WriteHeader(http.StatusNoContent)
		default:
			_ = writeJSON(w, answer)
		}
	})
}

// Play waits until a program has played the job.
func (l *Leases) Play(ctx context.Context, j Job) (JobOutcome, error) {
	job := &leasedJob{job: j, id: rand.Text(), done: make(chan JobOutcome, 1)}
	l.mu.Lock()
	l.byID[job.id] = job
	l.queue(job)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.remove(job)
	}()
	select {
	case p := <-job.done:
		return p, nil
	case <-ctx.Done():
		return JobOutcome{}, context.Cause(ctx)
	}
}

// queue lets a job wait for a program. The caller must hold the lock.
func (l *Leases) queue(job *leasedJob) {
	job.expires = nil
	l.waiting = append(l.waiting, job)
	close(l.wake)
	l.wake = make(chan struct{})
}

// remove forgets a job. The caller must hold the lock.
func (l *Leases) remove(job *leasedJob) {
	job.ended = true
	delete(l.byID, job.id)
	if job.expires != nil {
		job.expires.Stop()
	}
}

// longPoll is the time that a request for a lease waits for a job.
const longPoll = 20 * time.Second

// lease grants a job. It answers with status 204 if no job becomes available for a while.
func (l *Leases) lease(r *http.Request, _ []byte) (any, error) {
	if !secret.Equal(bearer(r), l.Token) {
		return nil, refuse(401, "invalid_api_key", "a request for a lease needs the token of gateway.token_env as its bearer token")
	}
	ctx, cancel := context.WithTimeout(r.Context(), longPoll)
	defer cancel()
	for {
		l.mu.Lock()
		offer, ok := l.grant(r)
		wake := l.wake
		l.mu.Unlock()
		if ok {
			return offer, nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// grant leases the first waiting job. The caller must hold the lock.
func (l *Leases) grant(r *http.Request) (Lease, bool) {
	for len(l.waiting) > 0 {
		job := l.waiting[0]
		l.waiting = l.waiting[1:]
		if job.ended {
			continue
		}
		job.attempt++
		job.ends = time.Now().Add(l.Timeout)
		attempt := job.attempt
		job.expires = time.AfterFunc(min(l.Lease, l.Timeout), func() { l.expire(job, attempt) })
		t := l.ticket(job)
		base := l.BaseURL
		if base == "" {
			base = "http://" + r.Host + "/v1"
		}
		return Lease{ID: job.id, Query: job.job.query(), Rollout: t.Rollout, Attempt: t.Attempt, Deadline: t.Deadline,
			Renew: l.Lease.Seconds(), BaseURL: base, Key: l.secret.Key(t)}, true
	}
	return Lease{}, false
}

// ticket returns the ticket of the job's current attempt.
func (l *Leases) ticket(job *leasedJob) Ticket {
	t := job.job.Ticket
	t.Attempt, t.Deadline = job.attempt, job.ends.Unix()+1
	return t
}

// expire queues a job again after its lease expired, or ends it after too much time or too many leases.
func (l *Leases) expire(job *leasedJob, attempt int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if job.ended || job.attempt != attempt {
		return
	}
	if !time.Now().Before(job.ends) {
		l.end(job, JobOutcome{Ticket: l.ticket(job), Failed: fmt.Errorf("the program took longer than task.program.timeout, %v", l.Timeout)})
		return
	}
	if attempt >= maxAttempts {
		l.end(job, JobOutcome{Ticket: l.ticket(job), Failed: fmt.Errorf("no program finished it in %d leases", maxAttempts)})
		return
	}
	l.queue(job)
}

// end reports the outcome to the caller that waits for the job. The caller of end must hold the lock.
func (l *Leases) end(job *leasedJob, p JobOutcome) {
	l.remove(job)
	job.done <- p
}

// find returns the job of a request. The request must carry the key of the job's current attempt. The caller must hold
// the lock.
func (l *Leases) find(r *http.Request) (*leasedJob, error) {
	job := l.byID[r.PathValue("id")]
	if job == nil {
		return nil, refuse(404, "not_found", "there is no such rollout, or it has ended")
	}
	if job.expires == nil || !secret.Equal(bearer(r), l.secret.Key(l.ticket(job))) {
		return nil, errSuperseded
	}
	return job, nil
}

// renew prolongs a lease, at most to the end of the program's time.
func (l *Leases) renew(r *http.Request, _ []byte) (any, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	job, err := l.find(r)
	if err == nil && !job.expires.Stop() { // it has just expired
		err = errSuperseded
	} else if err == nil {
		job.expires.Reset(min(l.Lease, time.Until(job.ends)))
	}
	return nil, err
}

// result ends a job. If the result cannot be read, the program has failed.
func (l *Leases) result(r *http.Request, body []byte) (any, error) {
	result, bad := parseResult(body)
	l.mu.Lock()
	defer l.mu.Unlock()
	job, err := l.find(r)
	if err != nil {
		return nil, err
	}
	l.end(job, JobOutcome{Ticket: l.ticket(job), Result: result, Failed: bad})
	return nil, nil
}

func bearer(r *http.Request) string {
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return key
}
