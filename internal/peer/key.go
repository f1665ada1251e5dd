// Package peer lets the servers of one instance ask each other: what only the server of a machine's own host can do, every
// other one asks of it, over its internal routes. A call is signed with a key that only servers of the instance have.
//
// Who may see or do something is decided by the server that a person asked. The one that is asked in turn checks that the
// caller is a server of its instance, and nothing more.
package peer

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Times of a signature. The clocks of two servers may be apart by skew, in either direction.
const (
	skew     = 15 * time.Minute
	lifetime = skew // for the clock that is ahead: a signature must outlive the difference
)

// scheme of the Authorization header: "Managoat-Server from.expiry.signature".
const scheme = "Managoat-Server"

// maxCredential bounds what is read of the header, in bytes.
const maxCredential = 256

// Key signs calls between servers. Every server of an instance derives the same one.
type Key []byte

// NewKey derives the key from the instance's master key.
func NewKey(master []byte) Key {
	mac := hmac.New(sha256.New, master)
	mac.Write([]byte("calls between servers"))
	return mac.Sum(nil)
}

// Sign makes the Authorization of one call of one server to another. A call has no body: its URI says everything.
func (k Key) Sign(method, uri string, from, to uuid.UUID, now time.Time) string {
	expiry := strconv.FormatInt(now.Add(lifetime).Unix(), 10)
	mac := base64.RawURLEncoding.EncodeToString(k.mac(method, uri, from.String(), to.String(), expiry))
	return scheme + " " + from.String() + "." + expiry + "." + mac
}

// Check tells who signed a call to the server to, or why it is not to be believed.
func (k Key) Check(r *http.Request, to uuid.UUID, now time.Time) (from uuid.UUID, err error) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return uuid.Nil, errors.New("it is not signed")
	}
	name, credential, _ := strings.Cut(header, " ")
	parts := strings.Split(credential, ".")
	if len(header) > maxCredential || name != scheme || len(parts) != 3 {
		return uuid.Nil, errors.New("its Authorization is not a server's")
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil || !hmac.Equal(signature, k.mac(r.Method, r.URL.RequestURI(), parts[0], to.String(), parts[1])) {
		return uuid.Nil, errors.New("its signature is not one of this instance for this call to this server")
	}
	// From here on it is what a server wrote.
	if from, err = uuid.Parse(parts[0]); err != nil {
		return uuid.Nil, fmt.Errorf("its sender: %w", err)
	}
	seconds, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return uuid.Nil, fmt.Errorf("its expiry: %w", err)
	}
	if left := time.Unix(seconds, 0).Sub(now); left < 0 || left > lifetime+skew {
		return uuid.Nil, fmt.Errorf("its signature is for another time: it ends in %s by this server's clock", left.Round(time.Second))
	}
	return from, nil
}

func (k Key) mac(parts ...string) []byte {
	mac := hmac.New(sha256.New, k)
	for _, part := range parts {
		mac.Write([]byte(part + "\n")) // none of them can hold a newline
	}
	return mac.Sum(nil)
}
