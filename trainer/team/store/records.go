package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Limits of the values that workers publish for people. Training does not depend on these values.
const (
	MaxDisplayBytes = 64 << 10 // bytes of a record, or of an activity
	maxRecords      = 4096     // records in the store, of all agents together
	recordPage      = 512      // records read at once
)

// Record holds a run's numbers, such as the numbers of a step, as an agent's worker published them.
type Record struct {
	Agent string
	JSON  json.RawMessage
}

// Display holds the values that workers publish for people, and reads the store for people. Training does not depend on it.
type Display struct{ at *place }

// PublishRecord appends a record of the member's agent to the records of the run. A record is a JSON object of at most
// MaxDisplayBytes bytes. The store keeps the newest 4096 records, across rounds. If a reply is lost, the record may be stored
// twice.
func (d *Display) PublishRecord(ctx context.Context, record []byte) error {
	if err := checkDisplayed(record); err != nil {
		return fmt.Errorf("store: a record: %w", err)
	}
	_, err := d.at.write(ctx, recordScript, "a record", values{"records": d.at.key("records"), "kept": maxRecords, "record": string(record)})
	return err
}

// PublishActivity stores the current activity of the member's worker, a JSON object of at most MaxDisplayBytes bytes. It replaces
// the previous one.
func (d *Display) PublishActivity(ctx context.Context, activity []byte) error {
	if err := checkDisplayed(activity); err != nil {
		return fmt.Errorf("store: an activity: %w", err)
	}
	_, err := d.at.write(ctx, activityScript, "an activity", values{"activities": d.at.key("activity"), "activity": string(activity)})
	return err
}

func checkDisplayed(text []byte) error {
	if len(text) > MaxDisplayBytes {
		return fmt.Errorf("%d bytes; the limit is %d", len(text), MaxDisplayBytes)
	}
	if !json.Valid(text) || !strings.HasPrefix(string(text), "{") {
		return errors.New("it is not a JSON object")
	}
	return nil
}

// Records reads the records after a place, oldest first, and returns the place after the last of them. The place "" is the
// beginning. The publisher may have sent any JSON object.
func (d *Display) Records(ctx context.Context, after string) (records []Record, last string, err error) {
	from, last := "-", after
	if after != "" {
		from = "(" + after
	}
	for {
		entries, err := d.at.rdb.XRangeN(ctx, d.at.key("records"), from, "+", recordPage).Result()
		if err != nil {
			return nil, after, fmt.Errorf("store: the records: %w", d.at.advise(err))
		}
		for _, e := range entries {
			r, err := readRecord(d.at.key("records"), e)
			if err != nil {
				return nil, after, err
			}
			records, last = append(records, r), e.ID
		}
		if len(entries) < recordPage || len(records) > 2*maxRecords {
			return records, last, nil
		}
		from = "(" + last
	}
}

func readRecord(key string, e redis.XMessage) (Record, error) {
	agent, _ := e.Values["agent"].(string)
	text, _ := e.Values["record"].(string)
	if err := errors.Join(checkName("an agent", agent), checkDisplayed([]byte(text))); err != nil {
		return Record{}, &MalformedError{Key: key + " " + clip(e.ID), Msg: err.Error()}
	}
	return Record{agent, json.RawMessage(text)}, nil
}

// Activities returns the published activity of each agent's newest worker. Agents whose worker has not published one are
// absent.
func (d *Display) Activities(ctx context.Context) (map[string]json.RawMessage, error) {
	texts, err := d.at.rdb.HGetAll(ctx, d.at.key("activity")).Result()
	if err != nil {
		return nil, fmt.Errorf("store: the activities: %w", d.at.advise(err))
	}
	out := map[string]json.RawMessage{}
	for agent, text := range texts {
		if err := errors.Join(checkName("an agent", agent), checkDisplayed([]byte(text))); err != nil {
			return nil, &MalformedError{Key: d.at.key("activity") + " " + clip(agent), Msg: err.Error()}
		}
		out[agent] = json.RawMessage(text)
	}
	return out, nil
}
