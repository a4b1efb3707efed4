// Package nbd serves a block device in the test process over the NBD
// protocol, so that QEMU can attach it as a disk.
//
// It speaks what QEMU, qemu-io and libnbd ask of a server: the fixed newstyle
// handshake with NBD_OPT_GO, INFO, LIST, EXPORT_NAME and ABORT, every other
// option refused (structured replies, TLS, meta contexts), and simple replies
// to READ, WRITE, FLUSH, TRIM, WRITE_ZEROES and DISC (NBD protocol document,
// github.com/NetworkBlockDevice/nbd, doc/proto.md).
package nbd

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
)

// Device is what a server serves. Requests of one connection run
// concurrently. A syscall.Errno found in an error is sent on where NBD knows
// it; all other errors become EIO.
type Device interface {
	io.ReaderAt
	io.WriterAt
	Size() int64
	Flush() error
	Trim(off int64, n int) error
	WriteZeroes(off int64, n int) error
}

// Constants of the protocol document, in its order and spelling.
const (
	magicInit        = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption      = 0x49484156454f5054 // "IHAVEOPT"
	magicOptionReply = 0x0003e889045565a9
	magicRequest     = 0x25609513
	magicReply       = 0x67446698

	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1

	transHasFlags        = 1 << 0
	transSendFlush       = 1 << 2
	transSendTrim        = 1 << 5
	transSendWriteZeroes = 1 << 6
	transCanMultiConn    = 1 << 8

	optExportName = 1
	optAbort      = 2
	optList       = 3
	optInfo       = 6
	optGo         = 7

	repAck        = 1
	repServer     = 2
	repInfo       = 3
	repErrUnsup   = 1<<31 + 1
	repErrInvalid = 1<<31 + 3

	infoExport    = 0
	infoBlockSize = 3

	cmdRead        = 0
	cmdWrite       = 1
	cmdDisc        = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdWriteZeroes = 6
)

// MaxRequestBytes is the longest read or write that is accepted, and what is
// announced as maximum block size.
const MaxRequestBytes = 32 << 20

// maxOptionBytes bounds what a client may send with an option.
const maxOptionBytes = 64 << 10

// inFlight is how many requests of one connection may wait at once.
const inFlight = 128

// Serve accepts connections on ln until ctx ends or ln is closed, and then
// waits for the connections to end. Any export name is answered with dev. It
// returns nil when ctx ended it.
func Serve(ctx context.Context, ln net.Listener, dev Device) error {
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("accept: %w", err)
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			defer c.Close()
			// A client that speaks nonsense loses its connection; nobody else
			// is to hear of it, and QEMU reports the loss by itself.
			_ = serveConn(c, dev)
		}()
	}
}

func serveConn(c net.Conn, dev Device) error {
	r := bufio.NewReaderSize(c, 64<<10)
	if err := handshake(r, c, dev); err != nil {
		return err
	}
	var (
		send sync.Mutex
		wg   sync.WaitGroup
		slot = make(chan struct{}, inFlight)
	)
	defer wg.Wait()
	var h [28]byte
	for {
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return err
		}
		if binary.BigEndian.Uint32(h[:]) != magicRequest {
			return errors.New("request without magic")
		}
		cmd := binary.BigEndian.Uint16(h[6:])
		cookie := binary.BigEndian.Uint64(h[8:])
		off := int64(binary.BigEndian.Uint64(h[16:]))
		n := int(binary.BigEndian.Uint32(h[24:]))
		if cmd == cmdDisc {
			return nil
		}
		var data []byte
		if cmd == cmdRead || cmd == cmdWrite {
			if n > MaxRequestBytes {
				return fmt.Errorf("request of %d bytes", n)
			}
			data = make([]byte, n)
		}
		if cmd == cmdWrite {
			if _, err := io.ReadFull(r, data); err != nil {
				return err
			}
		}
		slot <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-slot; wg.Done() }()
			err := transfer(dev, cmd, off, n, data)
			reply := make([]byte, 16, 16+n)
			binary.BigEndian.PutUint32(reply, magicReply)
			binary.BigEndian.PutUint32(reply[4:], errorValue(err))
			binary.BigEndian.PutUint64(reply[8:], cookie)
			if cmd == cmdRead && err == nil {
				reply = append(reply, data...)
			}
			send.Lock()
			defer send.Unlock()
			if _, err := c.Write(reply); err != nil {
				c.Close() // the reader above ends too
			}
		}()
	}
}

func transfer(dev Device, cmd uint16, off int64, n int, data []byte) error {
	var err error
	switch cmd {
	case cmdRead:
		_, err = dev.ReadAt(data, off)
	case cmdWrite:
		_, err = dev.WriteAt(data, off)
	case cmdFlush:
		err = dev.Flush()
	case cmdTrim:
		err = dev.Trim(off, n)
	case cmdWriteZeroes:
		err = dev.WriteZeroes(off, n)
	default:
		err = syscall.EINVAL
	}
	return err
}

// errorValue maps to the error values of the protocol, which are numbered as
// on Linux.
func errorValue(err error) uint32 {
	if err == nil {
		return 0
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		switch errno {
		case syscall.EPERM, syscall.EIO, syscall.ENOMEM, syscall.EINVAL, syscall.ENOSPC, syscall.EOVERFLOW, syscall.ENOTSUP, syscall.ESHUTDOWN:
			return uint32(errno)
		}
	}
	return uint32(syscall.EIO)
}

const transmission = transHasFlags | transSendFlush | transSendTrim | transSendWriteZeroes | transCanMultiConn

func handshake(r io.Reader, w io.Writer, dev Device) error {
	hello := binary.BigEndian.AppendUint64(nil, magicInit)
	hello = binary.BigEndian.AppendUint64(hello, magicOption)
	hello = binary.BigEndian.AppendUint16(hello, flagFixedNewstyle|flagNoZeroes)
	if _, err := w.Write(hello); err != nil {
		return err
	}
	var client [4]byte
	if _, err := io.ReadFull(r, client[:]); err != nil {
		return err
	}
	noZeroes := binary.BigEndian.Uint32(client[:])&flagNoZeroes != 0
	for {
		var h [16]byte
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return err
		}
		opt, n := binary.BigEndian.Uint32(h[8:]), binary.BigEndian.Uint32(h[12:])
		if binary.BigEndian.Uint64(h[:]) != magicOption || n > maxOptionBytes {
			return errors.New("option without magic, or too long")
		}
		data := make([]byte, n)
		if _, err := io.ReadFull(r, data); err != nil {
			return err
		}
		reply := func(kind uint32, data []byte) error {
			b := binary.BigEndian.AppendUint64(nil, magicOptionReply)
			b = binary.BigEndian.AppendUint32(b, opt)
			b = binary.BigEndian.AppendUint32(b, kind)
			b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
			_, err := w.Write(append(b, data...))
			return err
		}
		var err error
		switch opt {
		case optExportName: // the old way in, which ends the handshake without a reply header
			b := binary.BigEndian.AppendUint64(nil, uint64(dev.Size()))
			b = binary.BigEndian.AppendUint16(b, transmission)
			if !noZeroes {
				b = append(b, make([]byte, 124)...)
			}
			_, err = w.Write(b)
			return err
		case optAbort:
			_ = reply(repAck, nil)
			return errors.New("client aborted")
		case optList:
			if err = reply(repServer, make([]byte, 4)); err == nil { // one export, its name empty
				err = reply(repAck, nil)
			}
		case optInfo, optGo:
			if len(data) < 6 {
				err = reply(repErrInvalid, nil)
				break
			}
			info := binary.BigEndian.AppendUint16(nil, infoExport)
			info = binary.BigEndian.AppendUint64(info, uint64(dev.Size()))
			info = binary.BigEndian.AppendUint16(info, transmission)
			size := binary.BigEndian.AppendUint16(nil, infoBlockSize)
			size = binary.BigEndian.AppendUint32(size, 1)
			size = binary.BigEndian.AppendUint32(size, 4096)
			size = binary.BigEndian.AppendUint32(size, MaxRequestBytes)
			if err = reply(repInfo, info); err == nil {
				err = reply(repInfo, size)
			}
			if err == nil {
				err = reply(repAck, nil)
			}
			if err == nil && opt == optGo {
				return nil
			}
		default:
			err = reply(repErrUnsup, nil)
		}
		if err != nil {
			return err
		}
	}
}
