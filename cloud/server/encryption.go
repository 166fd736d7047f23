package server

import (
	"encoding/base64"

	"github.com/cmwa-project/cmwa/cloud/server/keys"
)

// maxValues limits the bodies with many values of a stack, after decompression: a CLI sends all
// secrets of a state in one call.
const maxValues = 64 << 20

// encryptValue encrypts one secret of the config or the state of a stack.
func (s *Server) encryptValue(c *call) (reply, error) {
	var body struct {
		Plain *[]byte `json:"plaintext"`
	}
	k, err := s.keyFor(c, &body)
	if err != nil {
		return reply{}, err
	}
	if body.Plain == nil {
		return reply{}, badRequest("plaintext is missing")
	}
	return reply{body: map[string][]byte{"ciphertext": k.Seal(*body.Plain, forSecret)}}, nil
}

// encryptValues returns the ciphertexts in the order of the plaintexts.
func (s *Server) encryptValues(c *call) (reply, error) {
	var body struct {
		Plain [][]byte `json:"plaintexts"`
	}
	k, err := s.keyFor(c, &body)
	if err != nil {
		return reply{}, err
	}
	sealed := make([][]byte, 0, len(body.Plain))
	for _, plain := range body.Plain {
		sealed = append(sealed, k.Seal(plain, forSecret))
	}
	return reply{body: map[string][][]byte{"ciphertexts": sealed}}, nil
}

func (s *Server) decryptValue(c *call) (reply, error) {
	var body struct {
		Sealed []byte `json:"ciphertext"`
	}
	k, err := s.keyFor(c, &body)
	if err != nil {
		return reply{}, err
	}
	plain, err := k.Open(body.Sealed, forSecret)
	if err != nil {
		return reply{}, badRequest("%v", err)
	}
	return reply{body: map[string][]byte{"plaintext": notNull(plain)}}, nil
}

// decryptValues returns each plaintext under the base64 text of its ciphertext.
func (s *Server) decryptValues(c *call) (reply, error) {
	var body struct {
		Sealed [][]byte `json:"ciphertexts"`
	}
	k, err := s.keyFor(c, &body)
	if err != nil {
		return reply{}, err
	}
	opened := make(map[string][]byte, len(body.Sealed))
	for _, sealed := range body.Sealed {
		plain, err := k.Open(sealed, forSecret)
		if err != nil {
			return reply{}, badRequest("%v", err)
		}
		opened[base64.StdEncoding.EncodeToString(sealed)] = notNull(plain)
	}
	return reply{body: map[string]map[string][]byte{"plaintexts": opened}}, nil
}

// notNull makes the JSON form of an empty value "" and not null.
func notNull(plain []byte) []byte { return append([]byte{}, plain...) }

// noteDecryption accepts the report of a CLI that it has decrypted secrets of a stack. The
// service keeps no record of decryptions.
func (s *Server) noteDecryption(c *call) (reply, error) {
	_, err := s.keyFor(c, &empty{})
	return reply{}, err
}

// keyFor decodes the body and returns the key of the stack that the path names.
func (s *Server) keyFor(c *call, body any) (keys.Key, error) {
	if err := c.decode(maxValues, body); err != nil {
		return keys.Key{}, err
	}
	st, err := s.readStack(c)
	return st.key, err
}
