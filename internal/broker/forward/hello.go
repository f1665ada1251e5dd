package forward

import (
	"bufio"
	"errors"
	"time"

	"golang.org/x/crypto/cryptobyte"
)

// maxHello bounds what is held of a TLS client's first message, in bytes with its record headers. Real ones are
// under 4 KiB, with post-quantum keys.
const maxHello = 32 << 10

// errHello says that a TLS client's first message cannot be read; a server might read it otherwise than we would, so
// it does not get through.
var errHello = errors.New("the TLS ClientHello cannot be read")

// Numbers of RFC 8446 section 4 and 5, and of RFC 6066 section 3.
const (
	recordHandshake     = 22
	recordHeader        = 5
	messageClientHello  = 1
	messageHeader       = 4
	extensionServerName = 0
	nameTypeHost        = 0
)

// peekServerName looks at the first bytes of a connection without taking them. isTLS is false for anything that
// does not begin as TLS does; name is "" when the client names no server. r holds maxHello bytes. begun is called
// when the first byte is there: from then on the rest is due.
func peekServerName(r *bufio.Reader, begun func()) (name string, isTLS bool, err error) {
	first, err := r.Peek(1)
	if err != nil || first[0] != recordHandshake {
		return "", false, err
	}
	begun()
	var message []byte
	for end := 0; len(message) < messageHeader || len(message) < messageHeader+messageLength(message); {
		header, err := r.Peek(end + recordHeader)
		if err != nil {
			return "", true, errors.Join(errHello, err)
		}
		header = header[end:]
		size := int(header[3])<<8 | int(header[4])
		if header[0] != recordHandshake || header[1] != 3 || size == 0 {
			return "", true, errHello
		}
		record, err := r.Peek(end + recordHeader + size)
		if err != nil {
			return "", true, errors.Join(errHello, err)
		}
		message = append(message, record[end+recordHeader:]...)
		end += recordHeader + size
	}
	name, ok := serverName(message[:messageHeader+messageLength(message)])
	if !ok {
		return "", true, errHello
	}
	return name, true, nil
}

func messageLength(message []byte) int {
	return int(message[1])<<16 | int(message[2])<<8 | int(message[3])
}

// serverName reads the name out of a ClientHello. ok is false when the message is not well formed or names more than
// one server.
func serverName(message []byte) (name string, ok bool) {
	s := cryptobyte.String(message)
	var kind uint8
	var body, session, suites, compressions, extensions cryptobyte.String
	if !s.ReadUint8(&kind) || kind != messageClientHello || !s.ReadUint24LengthPrefixed(&body) ||
		!body.Skip(2+32) || // version, random
		!body.ReadUint8LengthPrefixed(&session) ||
		!body.ReadUint16LengthPrefixed(&suites) ||
		!body.ReadUint8LengthPrefixed(&compressions) {
		return "", false
	}
	if body.Empty() {
		return "", true // no extensions at all
	}
	if !body.ReadUint16LengthPrefixed(&extensions) || !body.Empty() {
		return "", false
	}
	seen := false
	for !extensions.Empty() {
		var number uint16
		var content cryptobyte.String
		if !extensions.ReadUint16(&number) || !extensions.ReadUint16LengthPrefixed(&content) {
			return "", false
		}
		if number != extensionServerName {
			continue
		}
		var names, host cryptobyte.String
		var nameType uint8
		if seen || !content.ReadUint16LengthPrefixed(&names) || !content.Empty() ||
			!names.ReadUint8(&nameType) || nameType != nameTypeHost ||
			!names.ReadUint16LengthPrefixed(&host) || !names.Empty() || host.Empty() {
			return "", false
		}
		seen, name = true, string(host)
	}
	return name, true
}

// helloTimeout is how long a TLS client may take from its first byte to the end of its first message.
const helloTimeout = 10 * time.Second

// alertUnrecognizedName is the TLS record that tells a client why its tunnel is closed (RFC 6066 section 3).
var alertUnrecognizedName = []byte{21, 3, 3, 0, 2, 2, 112}
