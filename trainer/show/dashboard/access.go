package dashboard

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"

	"github.com/mgrpo/mgrpo/trainer/internal/localhost"
	"github.com/mgrpo/mgrpo/trainer/internal/secret"
)

// access decides who may see the page.
type access struct {
	token  string // "": no token is needed
	cookie string // the cookie's value in a browser that has sent the token
}

// cookieName is the cookie's name. Its value is derived from the token and valid for the page only, since browsers send
// it to every port of this host.
const cookieName = "mgrpo_live"

func newAccess(token string) access {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("the page at " + Path))
	return access{token, hex.EncodeToString(mac.Sum(nil))}
}

// guard passes permitted requests on. Responses are for this page only: no other site may frame or read them.
func (a access) guard(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
			"Cross-Origin-Resource-Policy": "same-origin"} {
			w.Header().Set(name, value)
		}
		token := r.URL.Query().Get("token")
		switch {
		case r.Method != http.MethodGet:
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
		case a.token == "" && !localhost.Named(r.Host):
			http.Error(w, "without a token the page is for this machine only, under the name localhost or its address; set health.token_env",
				http.StatusForbidden)
		case a.token != "" && secret.Equal(token, a.token):
			http.SetCookie(w, &http.Cookie{Name: cookieName, Value: a.cookie, Path: Path, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteLaxMode})
			http.Redirect(w, r, Path, http.StatusSeeOther) // removes the token from the browser's address bar
		case a.token != "" && !a.recognises(r):
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the token of health.token_env is needed: open "+Path+"?token=TOKEN", http.StatusUnauthorized)
		default:
			next(w, r)
		}
	})
}

// recognises reports whether a request has the cookie, or the token in the form that /metrics accepts.
func (a access) recognises(r *http.Request) bool {
	if c, err := r.Cookie(cookieName); err == nil && secret.Equal(c.Value, a.cookie) {
		return true
	}
	return secret.Equal(r.Header.Get("Authorization"), "Bearer "+a.token)
}
