package dashboard

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Limits of streams of events.
const (
	maxViewers = 64
	heartbeat  = 15 * time.Second // time between two heartbeats, which show whether the viewer has left
	sendTime   = 10 * time.Second // time for a viewer to receive an event
)

// section is a part of the page. Its name is the id of its element and the type of its event.
type section struct {
	name   string
	digest string // digest of the content
	data   string // the content, HTML, as JSON: one line
}

func newSection(name, content string) section {
	sum := sha256.Sum256([]byte(content))
	data, _ := json.Marshal(content) // a string: cannot fail
	return section{name, hex.EncodeToString(sum[:8]), string(data)}
}

// sectionDigests holds the digests of the sections that a viewer's screen shows, by name. In text form it is the id of an event. A
// browser that reconnects, to any worker, sends it as Last-Event-ID, so that unchanged sections are not sent again.
type sectionDigests map[string]string

func parseSectionDigests(id string) sectionDigests {
	out := sectionDigests{}
	for _, part := range strings.Split(id, ",") {
		if name, digest, ok := strings.Cut(part, "="); ok {
			out[name] = digest
		}
	}
	return out
}

// id encodes the digests of the page's own sections only, even if the viewer sent other names.
func (s sectionDigests) id(of []section) string {
	var parts []string
	for _, x := range of {
		if s[x.name] == x.digest {
			parts = append(parts, x.name+"="+x.digest)
		}
	}
	return strings.Join(parts, ",")
}

// events streams the sections of the page: first those that the viewer has not seen, then each section that changes.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	if !p.addViewer() {
		http.Error(w, fmt.Sprintf("the page already has %d viewers", maxViewers), http.StatusServiceUnavailable)
		return
	}
	defer p.removeViewer()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // makes proxies forward events at once
	send := sender(w)
	if send("retry: 2000\n\n") != nil {
		return
	}
	has := parseSectionDigests(r.Header.Get("Last-Event-ID"))
	pulse := time.NewTicker(heartbeat)
	defer pulse.Stop()
	for {
		sections, changed := p.current()
		for _, s := range sections {
			if has[s.name] == s.digest {
				continue
			}
			has[s.name] = s.digest
			if send(fmt.Sprintf("event: %s\nid: %s\ndata: %s\n\n", s.name, has.id(sections), s.data)) != nil {
				return
			}
		}
		select {
		case <-changed:
		case <-pulse.C:
			if send(":\n\n") != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-p.ctx.Done():
			return
		}
	}
}

// sender returns a function that writes to a viewer without buffering.
func sender(w http.ResponseWriter) func(text string) error {
	c := http.NewResponseController(w)
	return func(text string) error {
		err := c.SetWriteDeadline(time.Now().Add(sendTime))
		_, failed := w.Write([]byte(text))
		return errors.Join(err, failed, c.Flush())
	}
}

// current returns the latest sections, and a channel that is closed when they change.
func (p *Page) current() ([]section, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latest, p.changed
}

// addViewer counts a viewer; while there are viewers the page reads the store.
func (p *Page) addViewer() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.viewers == maxViewers {
		return false
	}
	p.viewers++
	p.requestRead()
	return true
}

func (p *Page) removeViewer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.viewers--
}
