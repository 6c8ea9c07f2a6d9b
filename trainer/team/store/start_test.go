package store

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestStart: the team starts from the newest state that all agents offer. It lists the newer states with the agents that lack them.
func TestStart(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		ctx := t.Context()
		for name, test := range map[string]struct {
			boss, help []Offer
			want       Start
			err        string
		}{
			"afresh": {[]Offer{{Version: FromStart}}, []Offer{{Version: FromStart}}, Start{Offer: Offer{Version: FromStart}}, ""},
			"dated": {[]Offer{{Version: FromStart, Date: "2024-07-26"}}, []Offer{{Version: FromStart, Date: "2025-01-01"}},
				Start{Offer: Offer{Version: FromStart, Date: "2024-07-26"}}, ""},
			"newest":  {from(6, 4, 2).Offers, from(4, 2).Offers, Start{Offer: from(4).Offers[0], Refused: []string{"the checkpoint of version 6 (digest6) is missing at help"}}, ""},
			"another": {append([]Offer{{Version: 6, Digest: "x"}}, from(4).Offers...), from(6, 4).Offers, Start{Offer: from(4).Offers[0], Refused: []string{"the checkpoint of version 6 (x) is missing at help", "the checkpoint of version 6 (digest6) is missing at boss"}}, ""},
			"none":    {from(4).Offers, []Offer{{Version: FromStart}}, Start{}, "store: there is no state that all agents can start from: the checkpoint of version 4 (digest4) is missing at help; a start from the beginning is missing at boss; restore the missing checkpoints of run.dir, or start a new run with another run.dir for all"},
		} {
			o := Options{Run: name}
			join := func(agent string, offers []Offer) *Member {
				h := team
				h.Offers = offers
				m, err := b.open(t, o).Join(ctx, agent, h, ignore)
				must(t, err)
				return m
			}
			boss, help := join("boss", test.boss), join("help", test.help)
			for _, m := range []*Member{boss, help} {
				got, err := m.Round.Start(ctx)
				if test.err != "" {
					if err == nil || err.Error() != test.err {
						t.Errorf("%s: got  %v\nwant %s", name, err, test.err)
					}
					continue
				}
				must(t, err)
				if d := cmp.Diff(test.want, got); d != "" {
					t.Errorf("%s (-want +got):\n%s", name, d)
				}
			}
			must(t, boss.Leave(ctx))
			must(t, help.Leave(ctx))
		}
	})
}

// TestDateOfTheRound: a worker that takes over a place during a round gets the round's date, not the date that it offers.
func TestDateOfTheRound(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		join := func(agent, date string) *Member {
			h := team
			h.Offers = []Offer{{Version: FromStart, Date: date}}
			m, err := b.open(t, Options{}).Join(t.Context(), agent, h, ignore)
			must(t, err)
			return m
		}
		boss, help := join("boss", "2024-07-26"), join("help", "2024-07-26")
		start(t, boss, help)
		killWorker(t, b, help)
		help = join("help", "2024-07-27")
		if s := start(t, help); !s.Follows || s.Date != "2024-07-26" {
			t.Errorf("got start %+v, want the round's date, 2024-07-26", s)
		}
		must(t, boss.Leave(t.Context()))
		must(t, help.Leave(t.Context()))
	})
}
