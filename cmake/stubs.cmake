# protos/hostless/v1/*.proto -> hostless/v1/*_pb2.py, *_pb2.pyi, *_pb2_grpc.py
file(GLOB protos CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/protos/hostless/v1/*.proto)
set(stub_root ${CMAKE_BINARY_DIR}/stubs)
set(stubs "")
foreach(proto IN LISTS protos)
  get_filename_component(name ${proto} NAME_WE)
  list(APPEND stubs ${stub_root}/hostless/v1/${name}_pb2.py)
endforeach()
add_custom_command(
  OUTPUT ${stubs}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${stub_root}
  COMMAND ${Python_EXECUTABLE} -m grpc_tools.protoc -I ${CMAKE_SOURCE_DIR}/protos
          --python_out=${stub_root} --pyi_out=${stub_root} --grpc_python_out=${stub_root} ${protos}
  DEPENDS ${protos}
  COMMENT "Generating gRPC stubs"
  VERBATIM)
add_custom_target(stubs ALL DEPENDS ${stubs})
install(DIRECTORY ${stub_root}/hostless DESTINATION . FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi")
