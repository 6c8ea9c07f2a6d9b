package live

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// keeper decides who sees the page.
type keeper struct {
	token  string // "": none is needed
	cookie string // value of the cookie of a browser that has shown the token
}

// cookieName is the cookie's name. Its value is derived from the token and good for the page alone, since browsers send it to
// every port of this host.
const cookieName = "mgrpo_live"

func newKeeper(token string) keeper {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("the page at " + Path))
	return keeper{token, hex.EncodeToString(mac.Sum(nil))}
}

// guard lets the right requests through. Answers are for this page alone: no other site may frame or read them.
func (k keeper) guard(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
			"Cross-Origin-Resource-Policy": "same-origin"} {
			w.Header().Set(name, value)
		}
		given := r.URL.Query().Get("token")
		switch {
		case r.Method != http.MethodGet:
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
		case k.token == "" && !thisMachine(r.Host):
			http.Error(w, "without a token the page is for this machine, under the name localhost or its address; set health.token_env", http.StatusForbidden)
		case k.token != "" && equal(given, k.token):
			k.admit(w, r)
		case k.token != "" && !k.knows(r):
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a token is needed, that of health.token_env: open "+Path+"?token=TOKEN", http.StatusUnauthorized)
		default:
			next(w, r)
		}
	})
}

// admit gives a browser its cookie, and takes the token out of its address bar.
func (k keeper) admit(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: k.cookie, Path: Path, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteLaxMode})
	http.Redirect(w, r, Path, http.StatusSeeOther)
}

// knows says whether a request has the cookie, or the token as /metrics wants it.
func (k keeper) knows(r *http.Request) bool {
	if c, err := r.Cookie(cookieName); err == nil && equal(c.Value, k.cookie) {
		return true
	}
	return equal(r.Header.Get("Authorization"), "Bearer "+k.token)
}

// equal compares digests in constant time, so that the time of an answer reveals neither text nor its length.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// thisMachine says whether a request names this server by an address or as localhost. Under another name it may come from
// a page of somebody else, whose name server says that the name is this machine.
func thisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost")
}
