"""Caffe's messages (caffe_pb2), and their text form (text_format)."""
